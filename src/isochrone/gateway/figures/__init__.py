"""What a gateway has counted, as one compact page for its controllers: ``page`` is the format, ``reading`` fills it."""
