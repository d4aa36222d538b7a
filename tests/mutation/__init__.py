"""Mutation testing on demand: faults put into a module one at a time, and whether the tests of its folder see them."""
