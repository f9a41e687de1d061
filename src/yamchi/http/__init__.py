"""What every route needs, of whatever feature: who calls and what they may, problems, limits, headers, pages of a list.

Features import it; it imports no feature.
"""
