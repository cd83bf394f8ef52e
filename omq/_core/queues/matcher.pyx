# cython: language_level=3
"""The subscription matcher: finds the slots that hold a prefix of a topic.

A compressed radix trie (see trie.pxd) in which each node knows its holders and each holder one of its nodes.
Nothing recurses, teardown included: a peer may subscribe to a topic of a megabyte.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from omq._core.queues.trie cimport (
    MAX_LABEL_BYTES, MIN_TABLE_CHILDREN, TABLE_PLACES, Entry, Node, attach, cut_label, detach, drop_holders, drop_label,
    entry_at, entry_of, extend_label, find_child, label_of, only_child, place_of, put_holder, resize_children,
    set_label, slot_at, step, take_holder,
)


cdef bytes path_of(const Node *node):
    """Returns the prefix of a node."""
    cdef const Node *up = node
    cdef Py_ssize_t size = 0
    cdef char *end
    while up != NULL:
        size += up.size
        up = up.parent
    path = PyBytes_FromStringAndSize(NULL, size)
    end = PyBytes_AS_STRING(path) + size
    while node.parent != NULL:
        end -= node.size
        memcpy(end, label_of(node), node.size)
        node = node.parent
    return path


@cython.final
cdef class Matcher:
    """Finds the slots that subscribed to a prefix of a topic.

    A slot is a small number, 0 or more, that represents a peer; its owner assigns it and reuses it after
    `remove_slot`. Equal subscriptions of one slot are counted, not stored again. Nothing here locks: the
    owner serialises the calls. Methods that change a subscription return the effect:

    - 0: only how often the slot holds the prefix;
    - 1: the slot is the first that holds the prefix, or was the last one;
    - 2: the prefix is new for, or gone from, this slot, and others hold it as well;
    - -2: nothing, because the slot does not hold the prefix.
    """

    def __dealloc__(self):
        cdef Node *top = NULL       # nodes to be freed, linked by `parent`
        cdef Node *node = &self._root
        cdef int i
        while node != NULL:
            for i in range(TABLE_PLACES if node.room == TABLE_PLACES else node.fanout):
                if node.children[i] != NULL:
                    node.children[i].parent = top
                    top = node.children[i]
            drop_holders(node)
            free(node.children)
            if node != &self._root:
                drop_label(node)
                free(node)
            node = top
            if top != NULL:
                top = top.parent
        free(self._slots)
        free(self._stamps)
        free(self._hits)

    # Subscribing

    cdef int c_add(self, const char *prefix, Py_ssize_t size, int slot) except -1:
        """Subscribes a slot once more: COUNTED, FOR_EVERYONE or FOR_SLOT."""
        cdef Node *node
        cdef Entry *entry
        if slot < 0 or slot >= MAX_SLOTS:
            raise ValueError(f"slot {slot}: must be 0 to {MAX_SLOTS - 1}")
        if slot >= self._room:
            self._grow(slot)
        node = self._place(<const unsigned char *>prefix, size)
        if node == NULL:
            raise MemoryError
        entry = entry_of(node, slot)
        if entry != NULL:
            entry.count += 1
            return COUNTED
        if self._add_entry(node, slot) == NULL:
            self._tidy(node)
            raise MemoryError
        return FOR_EVERYONE if node.held == 1 else FOR_SLOT

    cdef int _grow(self, int slot) except -1:
        """Makes room for the slot in all tables that are indexed by slot."""
        cdef Py_ssize_t room = max(<Py_ssize_t>slot + 1, 2 * self._room, 8)
        slots = <Slot *>realloc(self._slots, room * sizeof(Slot))
        if slots == NULL:
            raise MemoryError
        self._slots = slots
        stamps = <uint64_t *>realloc(self._stamps, room * sizeof(uint64_t))
        if stamps == NULL:
            raise MemoryError
        self._stamps = stamps
        hits = <int *>realloc(self._hits, room * sizeof(int))
        if hits == NULL:
            raise MemoryError
        self._hits = hits
        memset(slots + self._room, 0, (room - self._room) * sizeof(Slot))
        memset(stamps + self._room, 0, (room - self._room) * sizeof(uint64_t))
        self._room = room
        return 0

    cdef Node *_node(self, const unsigned char *label, Py_ssize_t size) noexcept:
        """Returns a new node with a copy of the label; NULL: no memory."""
        cdef Node *node = <Node *>calloc(1, sizeof(Node))
        if node == NULL:
            return NULL
        if not set_label(node, label, size):
            free(node)
            return NULL
        self._nodes += 1
        return node

    cdef void _release(self, Node *node) noexcept:
        """Frees a node that has no holders and whose children are gone or have a new parent."""
        drop_label(node)
        free(node.children)
        free(node)
        self._nodes -= 1

    cdef Node *_place(self, const unsigned char *prefix, Py_ssize_t size) noexcept:
        """Returns the node for the prefix, a new one if necessary; NULL: no memory, and no superfluous node stays."""
        cdef Node *node = &self._root
        cdef Node *child
        cdef int same, limit
        while size > 0:
            child = find_child(node, prefix[0])
            if child == NULL:
                child = self._node(prefix, min(size, MAX_LABEL_BYTES))
                if child == NULL or not attach(node, child):
                    if child != NULL:
                        self._release(child)
                    self._tidy(node)
                    return NULL
                same = child.size
            else:
                same = 1
                limit = <int>min(size, child.size)
                while same < limit and label_of(child)[same] == prefix[same]:
                    same += 1
                if same < child.size:
                    child = self._split(child, same)
                    if child == NULL:
                        return NULL
            node = child
            prefix += same
            size -= same
        return node

    cdef Node *_split(self, Node *node, int size) noexcept:
        """Puts a new parent above a node, with the first *size* bytes of its label; NULL if there is no memory.

        The parent may absorb its own parent, so its label may be longer than *size*.
        """
        cdef Node *parent = node.parent
        cdef Node *upper = self._node(label_of(node), size)
        if upper == NULL:
            return NULL
        if not resize_children(upper, 2):
            self._release(upper)
            return NULL
        place_of(parent, label_of(node)[0])[0] = upper
        upper.parent = parent
        cut_label(node, size)
        attach(upper, node)  # there is room: cannot fail
        # A piece of a long label may now fit together with an adjacent one that became shorter.
        self._join(node)
        self._join(parent)
        return upper

    cdef Entry *_add_entry(self, Node *node, int slot) noexcept:
        """Makes the slot a holder of the node and appends the entry to the slot's list; NULL: no memory."""
        cdef Slot *owner = &self._slots[slot]
        cdef Entry *entry = <Entry *>malloc(sizeof(Entry))
        if entry == NULL or not put_holder(node, slot, entry):
            free(entry)
            return NULL
        entry.node, entry.count, entry.slot = node, 1, slot
        entry.previous, entry.next = owner.last, NULL
        if owner.last == NULL:
            owner.first = entry
            self._active += 1
        else:
            owner.last.next = entry
        owner.last = entry
        self._pairs += 1
        if node.held == 1:
            self._prefixes += 1
        return entry

    # Unsubscribing: returns memory where possible, and never fails.

    cdef int c_remove(self, const char *prefix, Py_ssize_t size, int slot) noexcept:
        """Takes one subscription back: COUNTED, FOR_EVERYONE, FOR_SLOT or NOT_HELD."""
        return self._lower(self._find(prefix, size, slot), 1)

    cdef int c_drop(self, const char *prefix, Py_ssize_t size, int slot) noexcept:
        """Takes all equal subscriptions of the slot back: FOR_EVERYONE, FOR_SLOT or NOT_HELD."""
        return self._lower(self._find(prefix, size, slot), <uint64_t>-1)

    cdef Entry *_find(self, const char *prefix, Py_ssize_t size, int slot) noexcept:
        """Returns the entry of exactly that slot and prefix, or NULL."""
        cdef const Node *node = self._exact(<const unsigned char *>prefix, size)
        return NULL if node == NULL else entry_of(node, slot)

    cdef int _lower(self, Entry *entry, uint64_t by) noexcept:
        cdef Node *node
        cdef int left
        if entry == NULL:
            return NOT_HELD
        if entry.count > by:
            entry.count -= by
            return COUNTED
        node = entry.node
        self._leave(entry)
        left = node.held
        self._tidy(node)
        return FOR_EVERYONE if left == 0 else FOR_SLOT

    cdef void _leave(self, Entry *entry) noexcept:
        """Removes the entry from its node and its slot, and frees it. The node is left for `_tidy`."""
        cdef Node *node = entry.node
        cdef Slot *owner = &self._slots[entry.slot]
        if entry.previous == NULL:
            owner.first = entry.next
        else:
            entry.previous.next = entry.next
        if entry.next == NULL:
            owner.last = entry.previous
        else:
            entry.next.previous = entry.previous
        if owner.first == NULL:
            self._active -= 1
        self._pairs -= 1
        take_holder(node, entry.slot)
        if node.held == 0:
            self._prefixes -= 1
        free(entry)

    cdef void _tidy(self, Node *node) noexcept:
        """Removes nodes that are no longer needed, from this node upwards."""
        cdef Node *parent
        while node.parent != NULL and node.held == 0 and node.fanout == 0:
            parent = node.parent
            detach(parent, node)
            self._release(node)
            node = parent
        parent = node.parent
        self._join(node)
        if parent != NULL:
            self._join(parent)

    cdef void _join(self, Node *node) noexcept:
        """Joins a node that no slot holds with its only child, if it has just one and the label stays in bounds."""
        cdef Node *child
        if node.parent == NULL or node.held != 0 or node.fanout != 1:
            return
        child = only_child(node)
        # The child stays, so that entries and grandchildren keep pointing to it.
        if node.size + child.size > MAX_LABEL_BYTES or not extend_label(child, label_of(node), node.size):
            return
        place_of(node.parent, label_of(node)[0])[0] = child
        child.parent = node.parent
        self._release(node)

    # stub: def remove_slot(self, slot: int) -> list[bytes]: ...
    cpdef list remove_slot(self, int slot):
        """Takes back all prefixes of a slot, at a cost that grows with their number.

        Returns:
            The prefixes that no slot holds any longer, oldest first.
        """
        cdef list orphans = []
        while True:
            prefix = self.c_oldest(slot)
            if prefix is None:
                return orphans
            if self.c_shed(slot) == FOR_EVERYONE:
                orphans.append(prefix)

    cdef bytes c_oldest(self, int slot):
        """Returns the prefix that the slot has held for the longest time; None: it holds no prefix."""
        if slot < 0 or slot >= self._room or self._slots[slot].first == NULL:
            return None
        return path_of(self._slots[slot].first.node)

    cdef int c_shed(self, int slot) noexcept:
        """Drops the prefix that the slot has held for the longest time: FOR_EVERYONE, FOR_SLOT or NOT_HELD."""
        if slot < 0 or slot >= self._room:
            return NOT_HELD
        return self._lower(self._slots[slot].first, <uint64_t>-1)

    # Matching

    cdef int c_match(self, const char *topic, Py_ssize_t size) noexcept nogil:
        """Counts the slots that hold a prefix of the topic; `c_matched` returns them, each once, until the next call.

        The cost is one step for each node on the topic's path, and one step for each subscription on it.
        """
        cdef const unsigned char *rest = <const unsigned char *>topic
        cdef const Node *node = &self._root
        cdef uint64_t generation = self._generation + 1
        cdef int i, slot, count = 0
        self._generation = generation
        while node != NULL:
            for i in range(node.held):
                slot = slot_at(node, i)
                if self._stamps[slot] != generation:
                    self._stamps[slot] = generation
                    self._hits[count] = slot
                    count += 1
            if count == self._active:  # all slots are found
                break
            rest += node.size
            size -= node.size
            node = step(node, rest, size)
        return count

    cdef int c_match_exactly(self, const char *topic, Py_ssize_t size) noexcept nogil:
        """Works like `c_match`, for the slots that hold exactly this topic."""
        cdef const Node *node = self._exact(<const unsigned char *>topic, size)
        cdef int i
        if node == NULL:
            return 0
        for i in range(node.held):
            self._hits[i] = slot_at(node, i)
        return node.held

    cdef const Node *_exact(self, const unsigned char *rest, Py_ssize_t size) noexcept nogil:
        """Returns the node at which these bytes end, or NULL."""
        cdef const Node *node = &self._root
        while size > 0:
            node = step(node, rest, size)
            if node == NULL:
                return NULL
            rest += node.size
            size -= node.size
        return node

    cdef const int *c_matched(self) noexcept nogil:
        """Returns the slots of the last `c_match`, in no particular order; valid until a subscription is added."""
        return self._hits

    cdef bint c_matches_any(self, const char *topic, Py_ssize_t size) noexcept nogil:
        """Returns whether any slot holds a prefix of the topic."""
        cdef const unsigned char *rest = <const unsigned char *>topic
        cdef const Node *node = &self._root
        while node != NULL:
            if node.held != 0:
                return True
            rest += node.size
            size -= node.size
            node = step(node, rest, size)
        return False

    cdef bint c_holds(self, const char *prefix, Py_ssize_t size, int slot) noexcept:
        """Returns whether the slot holds exactly this prefix."""
        return self._find(prefix, size, slot) != NULL

    # The same for Python

    def add(self, bytes prefix not None, int slot) -> int:
        """Subscribes a slot once more.

        Returns:
            0, 1 or 2 (see the class).

        Raises:
            ValueError: The slot is below 0, or 2**24 or more.
        """
        return self.c_add(PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix), slot)

    def remove(self, bytes prefix not None, int slot) -> int:
        """Takes one subscription back: for the subscriber's own side, where each call counts.

        Returns:
            0, 1, 2 or -2 (see the class).
        """
        return self.c_remove(PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix), slot)

    def drop(self, bytes prefix not None, int slot) -> int:
        """Takes all equal subscriptions of a slot back: for a publisher that receives a cancellation.

        libzmq's XSUB sends every subscription but only the last cancellation: a publisher that counted would
        never see the peer go.

        Returns:
            1, 2 or -2 (see the class).
        """
        return self.c_drop(PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix), slot)

    def match(self, bytes topic not None) -> list[int]:
        """Returns the slots that hold a prefix of the topic, each once, in no particular order."""
        cdef int i, count = self.c_match(PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
        return [self._hits[i] for i in range(count)]

    def matches_any(self, bytes topic not None) -> bool:
        """Returns whether any slot holds a prefix of the topic."""
        return bool(self.c_matches_any(PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)))

    def __len__(self) -> int:
        """Returns the number of distinct pairs of slot and prefix."""
        return self._pairs

    @property
    def prefix_count(self) -> int:
        """Distinct prefixes that are held."""
        return self._prefixes

    def holds(self, bytes prefix not None, int slot) -> bool:
        """Returns whether a slot holds exactly this prefix."""
        return bool(self.c_holds(PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix), slot))

    def count(self, bytes prefix not None) -> int:
        """Returns how many slots hold exactly this prefix."""
        cdef const Node *node = self._exact(<const unsigned char *>PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix))
        return 0 if node == NULL else node.held

    def prefixes(self) -> list[tuple[bytes, int]]:
        """Returns each prefix that is held and how many slots hold it, in no particular order."""
        cdef list found = []
        cdef Entry *entry
        cdef Py_ssize_t slot
        # Through the entries and not through the trie: a path is then built only where a prefix ends.
        for slot in range(self._room):
            entry = self._slots[slot].first
            while entry != NULL:
                if slot_at(entry.node, 0) == slot:
                    found.append((path_of(entry.node), entry.node.held))
                entry = entry.next
        return found

    def prefixes_of(self, int slot) -> list[bytes]:
        """Returns the prefixes of one slot, oldest first."""
        cdef list found = []
        cdef Entry *entry
        if 0 <= slot < self._room:
            entry = self._slots[slot].first
            while entry != NULL:
                found.append(path_of(entry.node))
                entry = entry.next
        return found

    # For tests

    @property
    def nodes(self) -> int:
        """Allocated nodes; 0 if at most the empty prefix is held. For tests."""
        return self._nodes

    def steps(self, bytes topic not None) -> int:
        """Returns the number of nodes that a match of the topic may visit below the root. For tests."""
        cdef const unsigned char *rest = <const unsigned char *>PyBytes_AS_STRING(topic)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(topic)
        cdef const Node *node = &self._root
        cdef int count = -1
        while node != NULL:
            count += 1
            rest += node.size
            size -= node.size
            node = step(node, rest, size)
        return count

    def check(self) -> None:
        """Asserts every invariant of the trie and its lists; visits all of it. For tests."""
        cdef list open_nodes = [<size_t>&self._root]
        cdef Node *node
        cdef Node *child
        cdef Py_ssize_t nodes = -1, pairs = 0
        cdef int i, slot, children
        while open_nodes:
            node = <Node *><size_t>open_nodes.pop()
            nodes += 1
            pairs += node.held
            children = 0
            for i in range(TABLE_PLACES if node.room == TABLE_PLACES else node.fanout):
                child = node.children[i]
                if child != NULL:
                    children += 1
                    assert child.parent == node and 0 < child.size <= MAX_LABEL_BYTES
                    assert find_child(node, label_of(child)[0]) == child
                    open_nodes.append(<size_t>child)
            assert children == node.fanout and (node.room > 0) == (node.fanout > 0)
            assert (node.room == TABLE_PLACES) <= (node.fanout > MIN_TABLE_CHILDREN)
            for i in range(node.held):
                slot = slot_at(node, i)
                assert i == 0 or slot_at(node, i - 1) < slot
                assert entry_at(node, i).slot == slot and entry_at(node, i).node == node
                assert entry_at(node, i).count > 0
            if node.parent != NULL and node.held == 0:
                assert node.fanout > 1 or node.size + only_child(node).size > MAX_LABEL_BYTES
        assert nodes == self._nodes and pairs == self._pairs
        assert len(self.prefixes()) == self._prefixes
        assert sum(1 for i in range(self._room) if self._slots[i].first != NULL) == self._active
        assert sum(len(self.prefixes_of(i)) for i in range(self._room)) == pairs
