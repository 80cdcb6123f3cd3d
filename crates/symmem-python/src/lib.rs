//! The Python package of symmem will live here; it is empty so far.
