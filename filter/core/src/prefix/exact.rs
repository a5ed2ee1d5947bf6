//! The exact prefix index in memory: what the shared tree is measured against.
