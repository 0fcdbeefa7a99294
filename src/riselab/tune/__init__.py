"""``rise tune``: a chat model learns from a file of chats and keeps what it knew."""
