package io.cogr.client;

/**
 * The expander refuses the request: a wrong token, too long a query. It is the caller's to mend.
 */
public final class RefusedException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    RefusedException(String message) {
        super(message);
    }
}
