"""FUNCTION: returns the length of the longest line of each object, as JSON lines.

Test it with ``make``, run it on local files with ``make local``.
"""


def longest_line(osd, handle):
    """Returns the length of the longest line of an object in bytes."""
    longest = current = 0
    for chunk in osd.stream(handle):
        first, *others = chunk.split(b"\n")
        # The first part continues the line of the previous chunk.
        current += len(first)
        longest = max(longest, current)
        if others:
            longest = max(longest, *map(len, others))
            current = len(others[-1])
    return longest


def run(osd, call):
    """Runs the function."""
    for done, handle in enumerate(call.objects, 1):
        osd.result('{"object":%d,"longest":%d}\n' % (handle.handle, longest_line(osd, handle)))
        osd.progress(done, len(call.objects))
