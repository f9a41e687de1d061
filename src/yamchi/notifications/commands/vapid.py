"""`yamchi doctor --make vapid`: a new key for Web Push."""

from yamchi.console.output import print_json
from yamchi.errors import MissingExtra


def run(*, as_json: bool) -> None:
    """Print a new key, as lines for `.env`. Nothing is written: the key is the operator's to keep."""
    try:
        from yamchi.notifications.channels.push.vapid import VapidKey
    except ImportError as error:
        raise MissingExtra("push", "Web Push") from error
    key = VapidKey.make()
    if as_json:
        print_json({"private_key": key.private_text, "public_key": key.public_text})
        return
    print("# Keep this key: with another, every browser has to subscribe again.")
    print(f"VAPID_PRIVATE_KEY={key.private_text}")
    print("# Whom push services write to when something is wrong.")
    print("VAPID_SUBJECT=mailto:you@example.com")
    print(f"# The public key, which pages get at /push/key: {key.public_text}")
