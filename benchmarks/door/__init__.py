"""The programs of `make bench-service`: a server, its honest client, and clients that mean harm."""
