//! Ordered keys and transactions behind the metadata seam: memory and embedded.
