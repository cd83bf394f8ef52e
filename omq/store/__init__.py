"""The message log that broker and pzq stand on: topics of records with dense ids, on disk or in memory.

What is stored are blocks (`omq._core.blocks`): the store keeps and gives them as they are.
"""
