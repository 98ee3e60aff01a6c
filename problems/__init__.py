"""Problems: each module here registers some."""
