//! One module per API key; its header says which versions it serves and what is special about it.

pub mod fetch;
pub mod produce;
