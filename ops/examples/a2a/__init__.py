"""An agent of A2A elsewhere, which programs of a realm ask as a peer."""
