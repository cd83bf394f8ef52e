"""What the router of gobyd carries a second, beside a router made of libzmq's proxy."""
