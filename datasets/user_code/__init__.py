"""Code that users bring: functions to preprocess with, policies and environments to record.

source_files     the files that hold a user's code: which are local, what they import
content_hash     the identity of a value by its content: code, arguments, state, the same in every process
loading          modules by name or by file, by the content that they have now
identity         the record of a function or an object: its content, and the local files that it reaches
"""
