//! Objects, attributes and extents on a medium: the trait, memory and disk backends.
