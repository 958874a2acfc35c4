"""Code that users bring: functions to preprocess with, policies and environments to record.

source_files     the files that hold a user's code: which are local, what they import
loading          modules by name or by file, by the content that they have now
process_state    what it shares with its process: one thread at a time, and the settings of the caller
opened_files     the files that it opens itself while it is imported and called
identity         the record of a function or an object: a hash of its content, and the local files that it reaches
"""
