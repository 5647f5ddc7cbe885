//! Index, destination, policy, identity service, admission, status, journal.
