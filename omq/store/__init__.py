"""The store of the broker and pzq: topics of records with dense ids, on disk or in memory.

It stores blocks (`omq._core.blocks`) and returns them as they are.
"""
