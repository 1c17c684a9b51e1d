"""The error of a request that fails, whatever failed it."""


class AnchoredError(RuntimeError):
    """A request failed because of its input or the machine; the first line is the reason.

    Arguments that are wrong by themselves are ValueErrors; any other RuntimeError is a bug.
    """
