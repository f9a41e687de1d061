"""What pgmq calls a queue: letters, digits and `_`, so that SQL needs no quotes.

`email_queue` stays `email_queue`, `media-processing` is `media_processing`, `emailChain` is `emailchain`.
"""

import re
from hashlib import sha256

LONGEST_NAME = 43
"""pgmq allows 47 characters; four are for `_dlq`."""


def pgmq_name(queue: str) -> str:
    """The name pgmq knows a queue by, unless another queue has it already."""
    plain = re.sub(r"[^a-z0-9_]", "_", queue.lower())
    return plain if len(plain) <= LONGEST_NAME else second_name(queue)


def second_name(queue: str) -> str:
    """For a queue whose first name is too long or belongs to another queue."""
    plain = re.sub(r"[^a-z0-9_]", "_", queue.lower())
    return f"{plain[: LONGEST_NAME - 9]}_{sha256(queue.encode()).hexdigest()[:8]}"
