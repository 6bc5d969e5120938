"""The default page: the path, what is done of it, and where to begin."""
