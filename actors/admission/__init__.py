"""Session admission: lifecycle, claims, and the inputs a session owes an end."""
