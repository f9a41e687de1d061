"""E-mail: MIME, a pool of SMTP connections, and the channel itself."""
