"""The calls of users: the coroutines of one twin, and the threads that wait in the other."""
