//! Both ends of a ring against each other, and the host against hostile engines.

mod calls;
mod hostile;
mod support;
