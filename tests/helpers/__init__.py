"""Helpers shared by the tests: small problems, written files, fault injection, started processes."""
