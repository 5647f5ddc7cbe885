//! Sockets, original destination, netlink, namespaces, copying, clock: the only unsafe code.
