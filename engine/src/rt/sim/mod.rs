//! The simulated twin, to come.
