"""Options of libzmq that omq does not have, with the reason, or has under another name (`zmq_setsockopt(3)`)."""

from typing import Final

#: Options of libzmq that omq does not have, by their names in lower case, with the reason.
MEANINGLESS: Final[dict[str, str]] = {
    "affinity": "a context has one I/O thread, so there is no choice",
    "ipv4only": "endpoints are IPv4 only unless ipv6=True",
    "router_raw": "a ROUTER speaks ZMTP; raw TCP is what STREAM is for",
    "loopback_fastpath": "it is for Windows, and omq runs on Linux",
    **dict.fromkeys(
        ("in_batch_size", "out_batch_size"),
        "batches have no limit in messages: all that is queued is sent, or read, together",
    ),
    **dict.fromkeys(("rate", "recovery_ivl", "multicast_maxtpdu"), "it is for PGM, which omq does not speak"),
    **dict.fromkeys(
        ("vmci_buffer_size", "vmci_buffer_min_size", "vmci_buffer_max_size", "vmci_connect_timeout"),
        "it is for VMCI, which omq does not speak",
    ),
    **dict.fromkeys(
        (
            *("norm_mode", "norm_unicast_nack", "norm_buffer_size", "norm_segment_size"),
            *("norm_block_size", "norm_num_parity", "norm_num_autoparity", "norm_push"),
        ),
        "it is for NORM, which omq does not speak",
    ),
    **dict.fromkeys(
        (
            *("gssapi_server", "gssapi_plaintext", "gssapi_principal", "gssapi_service_principal"),
            *("gssapi_principal_nametype", "gssapi_service_principal_nametype"),
        ),
        "omq has no GSSAPI; security= takes PLAIN and CURVE",
    ),
}
#: Options of libzmq that have another name in omq.
RENAMED: Final = {
    "tcp_accept_filter": "accept_filter",
    "ipc_filter_uid": "accept_uids",
    "ipc_filter_gid": "accept_gids",
    "ipc_filter_pid": "accept_pids",
    "hello_msg": "hello_message",
    "disconnect_msg": "disconnect_message",
    "hiccup_msg": "hiccup_message",
    "bindtodevice": "bind_device",
    "routing_id": "identity",
    "connect_routing_id": "peer_identity",
    "tcp_maxrt": "tcp_user_timeout",
}
