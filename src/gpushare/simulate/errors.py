"""What makes an input unusable."""


class InputError(Exception):
    """The input cannot be used, and nothing of it was: exit status 2.

    The text says where (file, document, field), what stands there, and what would be right.
    """
