"""The Python guest as a component, for a build that linking by hand does not understand."""
