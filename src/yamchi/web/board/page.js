// The head of a page of its own, such as the mailbox.

import { findPages, introduce, showPlaces } from "/board/nav.js";

await Promise.all([introduce(), findPages()]);
showPlaces(location.pathname);
