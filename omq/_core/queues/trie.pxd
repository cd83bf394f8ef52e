# The nodes of the matcher's trie: labels, children and seats. No Python, no recursion.
#
# A node represents a prefix that a slot holds, a place where prefixes part, or a piece of a label that is
# longer than MAX_LABEL_BYTES.

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove

cdef enum:
    INLINE_LABEL_BYTES = 16  # bytes of a label that are kept inside the node
    MAX_LABEL_BYTES = 4096   # bytes in one label: bounds the bytes that cutting or joining moves
    TABLE_PLACES = 256       # places: one for each first byte of a label
    MAX_KEYED_PLACES = 32    # the largest number of places that are searched by key
    MIN_TABLE_CHILDREN = 16  # children: with as few a table becomes keys again

cdef struct Node
cdef struct Entry

cdef struct Seat:
    Entry *entry         # owned by the node that has the seat
    int slot             # entry.slot, copied here to be read without a detour

cdef union Holders:
    Entry *only          # owned; the only holder's, or NULL
    Seat *seats          # owned; those of two holders or more, sorted by slot

cdef union Label:
    unsigned char inline_bytes[INLINE_LABEL_BYTES]  # of a label that is that short
    unsigned char *bytes                      # owned; of a longer one

cdef struct Entry:       # one slot holds one prefix
    Node *node           # borrowed: where the prefix ends
    Entry *previous      # borrowed: the same slot's entry before this one, or NULL
    Entry *next          # borrowed: the same slot's entry after this one, or NULL
    uint64_t count       # number of equal subscriptions that this stands for, 1 or more
    int slot             # the holder

cdef struct Node:        # 56 bytes, as malloc gives them without waste: there is one for each prefix
    Node *parent         # borrowed; NULL in the root (and a list link during teardown)
    Node **children      # owned; `room` places; below TABLE_PLACES places, `room` bytes of keys follow them
    Holders holders      # the slots that hold exactly this prefix
    Label label          # the bytes from the parent to here
    int held             # holders
    int slot_or_room     # with one holder its slot; with more the seats allocated
    short size           # bytes in label, 1 to MAX_LABEL_BYTES; 0 in the root
    short fanout         # children
    short room           # places for children: 0, 2 to 32, or TABLE_PLACES (then indexed by the label's first byte)


# Labels: short ones live in their node.

cdef inline unsigned char *label_of(const Node *node) noexcept nogil:
    if node.size <= INLINE_LABEL_BYTES:
        return <unsigned char *>node.label.inline_bytes
    return node.label.bytes


cdef inline bint set_label(Node *node, const unsigned char *label, Py_ssize_t size) noexcept nogil:
    """Gives a node without a label a copy of one; False: no memory."""
    if size > INLINE_LABEL_BYTES:
        node.label.bytes = <unsigned char *>malloc(size)
        if node.label.bytes == NULL:
            return False
    node.size = <short>size
    memcpy(label_of(node), label, size)
    return True


cdef inline void drop_label(Node *node) noexcept nogil:
    if node.size > INLINE_LABEL_BYTES:
        free(node.label.bytes)
    node.size = 0


cdef inline void cut_label(Node *node, int size) noexcept nogil:
    """Takes the first *size* bytes off; at least one must remain. Cannot fail: it may leave memory unused."""
    cdef unsigned char *shorter
    cdef unsigned char *old = label_of(node)
    cdef bint owned = node.size > INLINE_LABEL_BYTES
    node.size -= <short>size
    if owned and node.size <= INLINE_LABEL_BYTES:
        memcpy(node.label.inline_bytes, old + size, node.size)
        free(old)
        return
    memmove(old, old + size, node.size)
    if owned:
        shorter = <unsigned char *>realloc(old, node.size)
        if shorter != NULL:
            node.label.bytes = shorter


cdef inline bint extend_label(Node *node, const unsigned char *front, int size) noexcept nogil:
    """Puts *size* bytes in front; False: no memory, nothing has changed."""
    cdef int total = node.size + size
    cdef unsigned char *longer
    if total <= INLINE_LABEL_BYTES:
        memmove(node.label.inline_bytes + size, node.label.inline_bytes, node.size)
        memcpy(node.label.inline_bytes, front, size)
    else:
        longer = <unsigned char *>malloc(total)
        if longer == NULL:
            return False
        memcpy(longer, front, size)
        memcpy(longer + size, label_of(node), node.size)
        drop_label(node)
        node.label.bytes = longer
    node.size = <short>total
    return True


# Children: unsorted keys that memchr searches, then a table. Both find a child in some nanoseconds.

cdef inline unsigned char *keys_of(const Node *node) noexcept nogil:
    return <unsigned char *>(node.children + node.room)


cdef inline Node *find_child(const Node *node, unsigned char key) noexcept nogil:
    cdef const unsigned char *hit
    if node.fanout == 0:
        return NULL
    if node.room == TABLE_PLACES:
        return node.children[key]
    hit = <const unsigned char *>memchr(keys_of(node), key, node.fanout)
    return NULL if hit == NULL else node.children[hit - keys_of(node)]


cdef inline Node *step(const Node *node, const unsigned char *topic, Py_ssize_t left) noexcept nogil:
    """Returns the child whose label starts the *left* bytes at *topic*, or NULL."""
    cdef Node *child
    if left == 0:
        return NULL
    child = find_child(node, topic[0])
    if child == NULL or child.size == 1:  # its first byte is the key that it was found by
        return child
    if child.size > left or memcmp(label_of(child), topic, child.size) != 0:
        return NULL
    return child


cdef inline bint resize_children(Node *node, int room) noexcept nogil:
    """Moves the children to *room* places, which must suffice; False: no memory, nothing has changed."""
    cdef Node **fresh
    cdef Node *child
    cdef int i, count = 0
    fresh = <Node **>(
        calloc(TABLE_PLACES, sizeof(Node *)) if room == TABLE_PLACES else malloc(room * (sizeof(Node *) + 1))
    )
    if fresh == NULL:
        return False
    for i in range(TABLE_PLACES if node.room == TABLE_PLACES else node.fanout):
        child = node.children[i]
        if child == NULL:
            continue
        if room == TABLE_PLACES:
            fresh[label_of(child)[0]] = child
        else:
            fresh[count] = child
            (<unsigned char *>(fresh + room))[count] = label_of(child)[0]
            count += 1
    free(node.children)
    node.children = fresh
    node.room = <short>room
    return True


cdef inline bint attach(Node *node, Node *child) noexcept nogil:
    """Adds a child with a first byte that no other has; False: no memory, nothing has changed."""
    cdef int room = node.room
    if room != TABLE_PLACES and node.fanout == room:
        room = 2 if room == 0 else room * 2 if room < MAX_KEYED_PLACES else TABLE_PLACES
        if not resize_children(node, room):
            return False
    if room == TABLE_PLACES:
        node.children[label_of(child)[0]] = child
    else:
        node.children[node.fanout] = child
        keys_of(node)[node.fanout] = label_of(child)[0]
    node.fanout += 1
    child.parent = node
    return True


cdef inline Node **place_of(const Node *node, unsigned char key) noexcept nogil:
    """Returns the place of the child with that first byte, which must exist."""
    if node.room == TABLE_PLACES:
        return &node.children[key]
    return &node.children[<const unsigned char *>memchr(keys_of(node), key, node.fanout) - keys_of(node)]


cdef inline void detach(Node *node, Node *child) noexcept nogil:
    """Takes a child out; gives up places when few are used (a failure to shrink is harmless)."""
    cdef Node **place = place_of(node, label_of(child)[0])
    node.fanout -= 1
    if node.room == TABLE_PLACES:
        place[0] = NULL
        if node.fanout <= MIN_TABLE_CHILDREN:
            resize_children(node, MAX_KEYED_PLACES)
        return
    keys_of(node)[place - node.children] = keys_of(node)[node.fanout]
    place[0] = node.children[node.fanout]
    if node.fanout == 0:
        free(node.children)
        node.children = NULL
        node.room = 0
    elif node.fanout * 4 <= node.room:
        resize_children(node, node.room // 2)


cdef inline Node *only_child(const Node *node) noexcept nogil:
    cdef int i = 0
    while node.children[i] == NULL:
        i += 1
    return node.children[i]


# Holders: one has no seat. Seats are sorted, so that an exact subscription is found among thousands of holders.

cdef inline int slot_at(const Node *node, int index) noexcept nogil:
    return node.slot_or_room if node.held == 1 else node.holders.seats[index].slot


cdef inline Entry *entry_at(const Node *node, int index) noexcept nogil:
    return node.holders.only if node.held == 1 else node.holders.seats[index].entry


cdef inline int holder_index(const Node *node, int slot) noexcept nogil:
    """Returns the index of the slot among the holders, or of the place where it would be."""
    cdef int low = 0, high = node.held, middle
    while low < high:
        middle = low + (high - low) // 2
        if slot_at(node, middle) < slot:
            low = middle + 1
        else:
            high = middle
    return low


cdef inline Entry *entry_of(const Node *node, int slot) noexcept nogil:
    """Returns the entry of a slot at this node, or NULL."""
    cdef int index = holder_index(node, slot)
    return entry_at(node, index) if index < node.held and slot_at(node, index) == slot else NULL


cdef inline bint put_holder(Node *node, int slot, Entry *entry) noexcept nogil:
    """Adds a holder that is not there yet; False: no memory, nothing has changed."""
    cdef int index = holder_index(node, slot)
    cdef int room = node.slot_or_room
    cdef Seat *seats
    if node.held == 0:
        node.holders.only = entry
        node.slot_or_room = slot
        node.held = 1
        return True
    if node.held == 1:
        seats = <Seat *>malloc(2 * sizeof(Seat))
        if seats == NULL:
            return False
        seats[0].entry, seats[0].slot = node.holders.only, node.slot_or_room
        node.holders.seats, node.slot_or_room = seats, 2
    elif node.held == room:
        seats = <Seat *>realloc(node.holders.seats, 2 * room * sizeof(Seat))
        if seats == NULL:
            return False
        node.holders.seats, node.slot_or_room = seats, 2 * room
    seats = node.holders.seats
    memmove(seats + index + 1, seats + index, (node.held - index) * sizeof(Seat))
    seats[index].entry, seats[index].slot = entry, slot
    node.held += 1
    return True


cdef inline void take_holder(Node *node, int slot) noexcept nogil:
    """Takes a holder out, which must be there; gives up seats when few are used (a failure to shrink is harmless)."""
    cdef int index = holder_index(node, slot)
    cdef Seat *seats = node.holders.seats
    cdef Seat last
    if node.held == 1:
        node.holders.only = NULL
        node.held = 0
        return
    node.held -= 1
    memmove(seats + index, seats + index + 1, (node.held - index) * sizeof(Seat))
    if node.held == 1:
        last = seats[0]
        free(seats)
        node.holders.only, node.slot_or_room = last.entry, last.slot
    elif node.held * 4 <= node.slot_or_room:
        seats = <Seat *>realloc(seats, (node.slot_or_room // 2) * sizeof(Seat))
        if seats != NULL:
            node.holders.seats = seats
            node.slot_or_room //= 2


cdef inline void drop_holders(Node *node) noexcept nogil:
    """Frees all entries of a node, and their seats."""
    cdef int i
    for i in range(node.held):
        free(entry_at(node, i))
    if node.held > 1:
        free(node.holders.seats)
    node.held = 0
