//! Collectors.
