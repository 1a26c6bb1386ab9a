"""The journal on JetStream: appending, reading, following, auditing and exporting."""
