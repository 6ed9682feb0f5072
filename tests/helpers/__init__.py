"""Helpers shared by the tests: small problems, data files, fault injection, processes."""
