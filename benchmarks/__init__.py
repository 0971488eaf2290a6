"""Our speed beside other libraries, the targets it is held to, and a soak test. See README.md in this folder."""
