"""What the user calls: the coroutines of the one twin, the threads that wait in the other."""
