//! The metadata server: accounts, namespace, layouts, credentials.
