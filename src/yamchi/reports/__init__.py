"""Reports: data becomes a PDF, a spreadsheet or CSV, is kept for a while, and whoever asked is told."""
