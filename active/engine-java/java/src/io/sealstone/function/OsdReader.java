package io.sealstone.function;

import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;

/** A stream that reads ahead. */
public final class OsdReader extends InputStream {
    private final CallHost host;
    private final long stream;
    private ByteBuffer current = ByteBuffer.allocate(0);
    private boolean isClosed;

    OsdReader(CallHost host, long stream) {
        this.host = host;
        this.stream = stream;
    }

    /**
     * Returns the next bytes without a copy.
     *
     * @return a read-only buffer of at most 1 MiB, valid until the next call; null at the end
     * @throws OsdException the device refused the read
     */
    public ByteBuffer next() throws OsdException {
        if (current.hasRemaining()) {
            ByteBuffer rest = current.slice();
            current.position(current.limit());
            return rest;
        }
        return isClosed || !fill() ? null : next();
    }

    private boolean fill() throws OsdException {
        long[] error = new long[1];
        ByteBuffer next = isClosed ? null : host.readNext(stream, error);
        OsdException.checked(error[0]);
        if (next == null || !next.hasRemaining()) {
            return false;
        }
        current = next.asReadOnlyBuffer();
        return true;
    }

    @Override
    public int read() throws IOException {
        return current.hasRemaining() || fill() ? current.get() & 0xFF : -1;
    }

    @Override
    public int read(byte[] into, int start, int length) throws IOException {
        if (length == 0) {
            return 0;
        }
        if (!current.hasRemaining() && !fill()) {
            return -1;
        }
        int count = Math.min(length, current.remaining());
        current.get(into, start, count);
        return count;
    }

    /**
     * Returns the next line without its line feed.
     *
     * @param limit maximum length in bytes
     * @return the bytes, or null at the end
     * @throws OsdException the line is longer than the limit, or the device refused the read
     */
    public byte[] line(int limit) throws OsdException {
        byte[] line = new byte[0];
        boolean hasLine = false;
        while (current.hasRemaining() || fill()) {
            hasLine = true;
            int start = current.position();
            int end = start;
            while (end < current.limit() && current.get(end) != '\n') {
                end++;
            }
            int length = line.length;
            if (end - start > limit - length) {
                throw new OsdException(OsdException.TOO_LARGE, "a line has more than " + limit + " bytes");
            }
            byte[] longer = new byte[length + end - start];
            System.arraycopy(line, 0, longer, 0, length);
            current.get(longer, length, end - start);
            line = longer;
            if (current.hasRemaining()) {
                current.get();
                return line;
            }
        }
        return hasLine ? line : null;
    }

    @Override
    public void close() throws IOException {
        if (!isClosed) {
            isClosed = true;
            current = ByteBuffer.allocate(0);
            OsdException.checked(host.closeStream(stream, false));
        }
    }
}
