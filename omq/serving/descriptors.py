"""The descriptors of a process that only serves."""

import logging
import resource


def raise_descriptor_limit(log: logging.Logger) -> None:
    """Raises the soft limit of descriptors to the hard one (`getrlimit(2)`), and logs it: each connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        log.info("descriptors: at most %s", _shown(hard))
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # a sandbox
        log.warning("descriptors: at most %s; the limit cannot be raised to %s: %s", _shown(soft), _shown(hard), error)
    else:
        log.info("descriptors: at most %s, raised from %s", _shown(hard), _shown(soft))


def _shown(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
