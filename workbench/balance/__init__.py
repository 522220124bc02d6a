"""Where experts live: placement, replicas, and the way from expert ids to slots."""
