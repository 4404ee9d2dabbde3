"""Access: who a caller is, and what it may do.

``document`` reads the access file, ``policy`` decides, ``keeper`` turns credentials into grants and follows the file.
"""
