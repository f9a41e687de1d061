"""Leads: people who left their contact, and what follows: letters, a bot, a lesson."""
