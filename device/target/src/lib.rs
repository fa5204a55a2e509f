//! The iSCSI target shell: sockets, buffers, budgets around the state machine.
