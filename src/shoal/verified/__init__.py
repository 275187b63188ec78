"""Verified arithmetic: enclosures of what a jaxpr computes, and theorems that decide from them."""
