//! The client against a runtime in the same process, and the rules over what is listed.

mod broker;
mod calls;
mod collect;
mod dead;
mod fake;
mod faults;
mod images;
mod sockets;
mod stop;
